-- Before the site's own rules, if there are any. Without the file, jobs pass as if this were not here.
do
    local function pass() return slurm.SUCCESS end
    local submit, modify = slurm_job_submit or pass, slurm_job_modify or pass
    local loaded, synsched = pcall(dofile, "/etc/synsched/job_submit.lua")
    slurm_job_submit, slurm_job_modify = submit, modify
    if loaded then
        function slurm_job_submit(job_desc, part_list, submit_uid)
            local code = synsched.submit(job_desc, part_list, submit_uid)
            if code ~= slurm.SUCCESS then return code end
            return submit(job_desc, part_list, submit_uid)
        end
        function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
            local code = synsched.modify(job_desc, job_rec, part_list, modify_uid)
            if code ~= slurm.SUCCESS then return code end
            return modify(job_desc, job_rec, part_list, modify_uid)
        end
    end
end
